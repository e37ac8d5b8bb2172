"""Documents from a user's files, folders and datasets: one reader for training and evaluation.

    book.txt · books.jsonl · corpus.parquet · folder/ · hub:owner/name:train · a `datasets` object
        → TextSource → Document, Document, … → text

A record is a document, and so is a text file. Documents are read one after another and never
held together.
"""

from hf_posenc.texts.document import DatasetObject, Document, HubDataset
from hf_posenc.texts.source import TextNames, TextPart, TextSource

__all__ = ["DatasetObject", "Document", "HubDataset", "TextNames", "TextPart", "TextSource"]
