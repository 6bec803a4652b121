"""The Python client: `Tiroir`, and `AsyncTiroir` with the same methods to await.

with Tiroir("http://127.0.0.1:8000") as tiroir:
tiroir.index("shop", "lyon", text=page)
for match in tiroir.near("shop", text=page, threshold=7).matches:
print(match.distance, match.key)
"""

from app.client.calls import Call
from app.client.clients import AsyncTiroir, Tiroir
from app.client.errors import ServiceError, UnavailableServiceError

__all__ = ["AsyncTiroir", "Call", "ServiceError", "Tiroir", "UnavailableServiceError"]
