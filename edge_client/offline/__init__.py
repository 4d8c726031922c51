"""What a device does while its server is away (`--offline`)."""
