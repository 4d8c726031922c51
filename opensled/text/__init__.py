"""Between text and tokens: tokenizers, chat templates, schemas, and answers as text."""
