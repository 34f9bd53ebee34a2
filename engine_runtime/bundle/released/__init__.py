"""The released MOSS-Speech: download, description, assembly."""
