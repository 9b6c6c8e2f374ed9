"""What mixes tokens in a layer: attention over keys and values, over a latent, or a recurrent state.

Each kind answers the same questions: its parameters, what it keeps for a token or for a sequence, and the
arithmetic of one (query, key) pair. Counts are of one layer. "Elements" become bytes by the format.
"""

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Attention:
    """Keys and values a head: MHA (kv_heads = heads), GQA, or MQA (one). With `window_tokens` it is sliding."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    window_tokens: int | None = None
    extra_parameters: int = 0
    """Biases, norms of queries and keys, sinks: held, never multiplied."""

    @property
    def kind(self) -> str:
        if self.window_tokens is not None:
            return "sliding"
        if self.kv_heads == self.heads:
            return "MHA"
        return "MQA" if self.kv_heads == 1 else "GQA"

    @property
    def matrix_parameters(self) -> int:
        return self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)

    @property
    def kv_elements_per_token(self) -> int:
        return 2 * self.kv_heads * self.head_dim

    @property
    def state_elements(self) -> int:
        return 0

    @property
    def pair_flops(self) -> int:
        """Scores and weighted sum: a multiply and an add each, for every head."""
        return 4 * self.heads * self.head_dim

    @property
    def split_heads(self) -> int:
        """Into how many ranks the KV divides without copies."""
        return self.kv_heads

    def seen_tokens(self, context_tokens: float) -> float:
        """Keys that one query reads."""
        return context_tokens if self.window_tokens is None else min(context_tokens, self.window_tokens)


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """MLA: one latent and one rope key a token, shared by all heads. Decode runs absorbed, in the latent."""

    hidden: int
    heads: int
    latent_dim: int
    rope_dim: int
    nope_dim: int
    value_dim: int
    query_latent_dim: int | None
    extra_parameters: int = 0

    @property
    def kind(self) -> str:
        return "MLA"

    @property
    def window_tokens(self) -> int | None:
        return None

    @property
    def matrix_parameters(self) -> int:
        query_out = self.heads * (self.nope_dim + self.rope_dim)
        if self.query_latent_dim is None:
            query = self.hidden * query_out
        else:
            query = self.query_latent_dim * (self.hidden + query_out)
        down = self.hidden * (self.latent_dim + self.rope_dim)
        up = self.latent_dim * self.heads * (self.nope_dim + self.value_dim)
        return query + down + up + self.heads * self.value_dim * self.hidden

    @property
    def kv_elements_per_token(self) -> int:
        return self.latent_dim + self.rope_dim

    @property
    def state_elements(self) -> int:
        return 0

    @property
    def pair_flops(self) -> int:
        """Absorbed: scores over latent and rope, weighted sum over the latent."""
        return 2 * self.heads * (2 * self.latent_dim + self.rope_dim)

    @property
    def expanded_pair_flops(self) -> int:
        """Expanded (prefill): keys and values were rebuilt a head."""
        return 2 * self.heads * (self.nope_dim + self.rope_dim + self.value_dim)

    @property
    def expand_flops_per_token(self) -> int:
        """To rebuild keys and values of one cached token for every head."""
        return 2 * self.latent_dim * self.heads * (self.nope_dim + self.value_dim)

    @property
    def split_heads(self) -> int:
        return 1

    def seen_tokens(self, context_tokens: float) -> float:
        return context_tokens


@dataclass(frozen=True, slots=True)
class Recurrent:
    """Mamba-2: a state of fixed size a sequence, and the tail of a short convolution."""

    hidden: int
    heads: int
    head_dim: int
    state_dim: int
    groups: int
    conv_width: int
    extra_parameters: int = 0

    @property
    def kind(self) -> str:
        return "recurrent"

    @property
    def window_tokens(self) -> int | None:
        return None

    @property
    def inner_dim(self) -> int:
        return self.heads * self.head_dim

    @property
    def conv_channels(self) -> int:
        return self.inner_dim + 2 * self.groups * self.state_dim

    @property
    def matrix_parameters(self) -> int:
        projected = self.inner_dim + self.conv_channels + self.heads
        return self.hidden * projected + self.inner_dim * self.hidden

    @property
    def kv_elements_per_token(self) -> int:
        return 0

    @property
    def state_elements(self) -> int:
        """Of one sequence, whatever its length."""
        return self.heads * self.head_dim * self.state_dim + self.conv_channels * (self.conv_width - 1)

    @property
    def pair_flops(self) -> int:
        return 0

    @property
    def token_flops(self) -> int:
        """State update (decay, outer product, add) and read-out, and the convolution, of one token."""
        return 6 * self.heads * self.head_dim * self.state_dim + 2 * self.conv_channels * self.conv_width

    @property
    def split_heads(self) -> int:
        return self.groups

    def seen_tokens(self, context_tokens: float) -> float:
        return 0.0 * context_tokens


Mixer: TypeAlias = Attention | LatentAttention | Recurrent
