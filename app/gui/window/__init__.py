"""The window: its parts around the rooms below, the small window, the tray, push-to-talk, the start."""
