"""Who drafts for a session, and what of each draft a step verifies: its device, and the drafter beside the target."""
