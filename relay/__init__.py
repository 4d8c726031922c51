"""A relay: a server towards its devices, and a device towards the server above it, whose target has the last word.

Its own model, smaller than the target and nearer to the devices, vets drafts at once. What it has vetted goes up as a
draft block, and comes back as truth. Both models draw with the noise of one key, so they agree often, and the text is
the target's whatever the relay's model says (HSD, arXiv 2510.19705, with acceptance by shared noise).

The way of a token: a session of the server decides it (session.py), uplink.py sends it up and hears the
verdict, vetting.py has the session confirm it or take it back. opening.py opens both ends of a sequence, command.py
starts a relay.
"""
