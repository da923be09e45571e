#!/bin/sh
# Makes the Python environment of tests and tools (never of the program) once: make_venv.sh FOLDER
set -eu
folder="$1"
requirements="$(dirname "$0")/requirements.txt"
stamp="$folder/requirements.txt"
[ -f "$stamp" ] && cmp -s "$requirements" "$stamp" && exit 0
/usr/bin/python3 -m venv "$folder"
"$folder/bin/pip" install --quiet --disable-pip-version-check -r "$requirements"
cp "$requirements" "$stamp"
