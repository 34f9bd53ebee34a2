"""The window: the only folder that imports PySide6 and pyqtgraph. Talks to `app.session` in messages alone."""
