"""systemd units for `serve`, `edge` and `relay`: written, started, shown and removed; nobody edits a unit file."""
