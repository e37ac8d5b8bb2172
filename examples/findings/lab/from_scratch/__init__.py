"""Tiny models trained from random weights under one budget: what each positional scheme learns, and how far it holds.

Task            rows to train on and questions to measure on, the same for every scheme
TrainingBudget  steps, batch, learning rate and size of the model
tiny_model      a GPT-2 under a scheme; the same initial weights for every scheme
train           AdamW with warmup and cosine schedule; an interrupted training resumes from its checkpoint
measure_cells   all of it, as a finding of `lab` measures it
"""
