"""The subcommands of moss-voice, one file each: `add_parser` declares its options, `run` executes it."""
