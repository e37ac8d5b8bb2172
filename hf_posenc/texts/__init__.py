"""Documents from a user's files, folders and datasets: one reader for training and evaluation.

    book.txt · books.jsonl · corpus.parquet · folder/ · hub:owner/name:train · a `datasets` object
        → TextSource → Document, Document, … → text

Each record and each text file is a document. Documents are read one after another, and never held in memory together.
What cannot be read raises `UnreadableDocuments`, with the file and the line or record.
"""

from hf_posenc.texts.document import DatasetObject, Document, HubDataset
from hf_posenc.texts.source import TextNames, TextPart, TextSource

__all__ = ["DatasetObject", "Document", "HubDataset", "TextNames", "TextPart", "TextSource"]
