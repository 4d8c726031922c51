"""systemd units for `serve`, `edge` and `relay`: written, started, shown and removed."""
