"""A target's text: tokenizers, chat templates, grammars."""
