"""One answer: draft, send, obey the verdict. Start reading at `generate`."""
