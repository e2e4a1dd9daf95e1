"""The task causal_lm: pre-training on text, and fine-tuning on completions and chats."""
