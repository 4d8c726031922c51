"""This process and its children: logs, signals, threads, forks, the service manager."""
