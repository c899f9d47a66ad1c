"""The container's health check: 0 where the server answers on its port, else 1 and why. Standard library only."""

import os
import sys
import urllib.request

url = f"http://127.0.0.1:{os.environ.get('AJET_PORT', '10086')}/healthz"
try:
    # No proxy stands between a container and itself.
    urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=4).close()
except OSError as err:
    sys.exit(f"{url}: {err}")
