"""`python -m tests.many_commands ARGUMENTS...`: several `opensled` commands in one process, for torch takes seconds to
start. Each is a JSON list of its words; prints its exit code when it has ended."""

import json
import sys

from opensled.cli.main import main

if __name__ == "__main__":
    for words in sys.argv[1:]:
        print("ended with", main(json.loads(words)), flush=True)
