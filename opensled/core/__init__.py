"""What device and server share: messages, protocol, noise, sampling, penalties, errors; imports no other room."""
