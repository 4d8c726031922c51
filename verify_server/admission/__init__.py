"""Opens sequences: checks what is asked, finds room, makes sessions."""
