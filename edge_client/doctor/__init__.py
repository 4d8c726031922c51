"""What `opensled doctor` looks at, one file per matter."""
