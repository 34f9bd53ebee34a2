#!/bin/sh
# Make an AppImage of the AppDir that packaging/build.py left. appimagetool and its runtime come from
# https://github.com/AppImage/appimagetool, not from a package index, so this last step is run by hand.
#   make-appimage.sh FOLDER.AppDir [FILE.AppImage]
set -eu
folder=${1:?the AppDir}
file=${2:-${folder%.AppDir}.AppImage}
if ! command -v appimagetool >/dev/null; then
    echo "make-appimage.sh: appimagetool is not in PATH. Put it there and start again." >&2
    exit 1
fi
ARCH=$(uname -m) appimagetool "$folder" "$file"
