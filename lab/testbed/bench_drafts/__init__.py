"""Whether drafts would pay on a server with OpenAI's API that somebody runs already, whichever it is."""
