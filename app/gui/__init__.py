"""The window: the only folder that imports PySide6 and pyqtgraph. It talks to `app.session` in messages."""
