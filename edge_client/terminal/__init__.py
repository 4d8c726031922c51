"""What a person sees and types in a terminal: chat, provisional text, colours."""
