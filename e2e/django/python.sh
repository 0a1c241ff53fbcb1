#!/usr/bin/env bash
# Prints a Python that has Django, from a virtual environment in the cache: instant where it is there already, some seconds
# where it is not. The proxy's tests run a Django application with it.
set -euo pipefail
source "$(dirname "$0")/../cluster/settings.sh"

requirements=$root/e2e/django/requirements.txt
key=$({ /usr/bin/python3 --version; cat "$requirements"; } | sha256sum | cut -c1-16)
folder=$CACHE/django-$key
mkdir -p "$CACHE"
exec 9>"$CACHE/django.lock"
flock 9

if [ ! -e "$folder/complete" ]; then
  echo "installing Django" >&2
  rm -rf "$folder"
  /usr/bin/python3 -m venv "$folder"
  "$folder/bin/pip" install --quiet --disable-pip-version-check --no-deps --only-binary :all: --require-hashes -r "$requirements" >&2
  touch "$folder/complete"
fi
echo "$folder/bin/python"
