"""Names of things, as distinct types so that one cannot be passed for another."""

from typing import NewType

RequestId = NewType("RequestId", str)
"""Made by the gateway; a client's own id is only echoed, never used as this."""
Attempt = NewType("Attempt", int)
"""The gateway's count of tries at one request, from 0. Rows of an older attempt are dropped."""
TenantId = NewType("TenantId", str)
KeyId = NewType("KeyId", str)
WorkerId = NewType("WorkerId", str)
GatewayId = NewType("GatewayId", str)
Incarnation = NewType("Incarnation", str)
"""One life of a process: a restarted worker keeps its WorkerId and gets a new incarnation."""
ReservationId = NewType("ReservationId", str)
ModelName = NewType("ModelName", str)
TokenId = NewType("TokenId", int)
BlockHash = NewType("BlockHash", bytes)
"""16 bytes; see `blockhash`."""
