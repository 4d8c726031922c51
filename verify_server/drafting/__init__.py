"""Drafters beside the target: a file each, named in verify_server/options/registries.py."""
