#!/bin/sh
# The trace's tests under other versions: sh reports/bench/version_matrix.sh [FOLDER] ["TORCH TRANSFORMERS" ...]
#
# Each pair gets a virtual environment under FOLDER (default: a temporary one). "-" keeps the torch, or the transformers,
# of the python that is on the path, through a .pth file, so that only what differs is downloaded.
set -eu
folder=${1:-$(mktemp -d)}
[ $# -gt 0 ] && shift
[ $# -gt 0 ] || set -- "- 4.57.6" "2.6.0 4.57.6" "2.7.1 4.57.6" "2.8.0 -" "2.9.1 -" "2.10.0 -" "2.11.0 -" "2.12.0 -" "- -"
root=$(cd "$(dirname "$0")/../.." && pwd)
python=${PYTHON:-python}
site=$("$python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
for pair in "$@"; do
    torch=${pair% *}
    transformers=${pair#* }
    env=$folder/torch$torch-transformers$transformers
    [ -d "$env" ] || "$python" -m venv "$env"
    own=$("$env/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
    echo "$site" > "$own/shared.pth"
    echo "$root" >> "$own/shared.pth"
    [ "$torch" = - ] || "$env/bin/pip" install -q "torch==$torch" --index-url https://download.pytorch.org/whl/cpu
    [ "$transformers" = - ] || "$env/bin/pip" install -q "transformers==$transformers" "huggingface-hub<1"
    echo "== torch $torch, transformers $transformers"
    (cd "$root" && "$env/bin/python" -m pytest -q -p no:cacheprovider tests/test_trace.py tests/test_parity.py) || true
done
