"""What `opensled doctor` looks at, one file per matter. A check finds; it never raises and never hangs."""
