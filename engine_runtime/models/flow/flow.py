"""Speech codes to mel: the plain network, one-shot and batched. The streaming counterpart is
codec/flow/token2mel.py.

In: codes, and optionally a voice prompt (its codes, its mel, an x-vector). Out: log-mel at `upsample`
frames per code. Parameter names are those of the released `flow.pt`. Runs in the thread of its caller.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from engine_runtime.models.flow.cfm import CausalCFM
from engine_runtime.models.flow.config import FlowConfig
from engine_runtime.models.flow.encoder import UpsampleConformerEncoder
from engine_runtime.options import FlowSchedule


class CausalFlow(nn.Module):
    """Causal flow matching from speech codes to mel."""

    def __init__(self, config: FlowConfig) -> None:
        super().__init__()
        self.config = config
        self.input_embedding = nn.Embedding(config.vocab_size, config.encoder_dim)
        self.spk_embed_affine_layer = nn.Linear(config.xvector_dim, config.n_mels)
        self.encoder = UpsampleConformerEncoder(config)
        self.encoder_proj = nn.Linear(config.encoder_dim, config.n_mels)
        self.decoder = CausalCFM(config)

    def speaker(self, xvector: Tensor | None, batch: int = 1) -> Tensor:
        """Speaker condition [B, n_mels] of x-vectors [B, xvector_dim]; None means the zero vector."""
        weight = self.spk_embed_affine_layer.weight
        if xvector is None:
            xvector = weight.new_zeros((batch, self.config.xvector_dim))
        return self.spk_embed_affine_layer(F.normalize(xvector.to(weight), dim=1))  # type: ignore[no-any-return]

    def encode(
        self, codes: Tensor, lengths: Tensor | None = None, streaming: bool = True, finalize: bool = True
    ) -> Tensor:
        """Codes [B, N] -> mu [B, n_mels, frames].

        With `finalize` false the last `look_ahead_codes` codes serve as context only and yield no frames.
        `lengths` [B] counts the codes of each row.
        """
        embedded = self.input_embedding(codes)
        context = None
        if not finalize:
            end = codes.shape[1] - self.config.look_ahead_codes
            embedded, context = embedded[:, :end], embedded[:, end:]
        hidden = self.encoder(embedded, context, lengths, streaming)
        return self.encoder_proj(hidden).transpose(1, 2)  # type: ignore[no-any-return]

    @torch.inference_mode()
    def inference(
        self,
        codes: Tensor,
        prompt_codes: Tensor | None = None,
        prompt_mel: Tensor | None = None,
        xvector: Tensor | None = None,
        n_steps: int | None = None,
        streaming: bool = True,
        finalize: bool = True,
        cfg_rate: float | None = None,
        schedule: FlowSchedule = "cosine",
    ) -> Tensor:
        """Mel of the codes, without the prompt's frames.

        codes [B, N]; prompt_codes [B, P]; prompt_mel [B, n_mels, P * upsample] (log-mel of the prompt);
        xvector [B, xvector_dim]. Returns [B, n_mels, N * upsample], or with `finalize` false (N -
        look_ahead) * upsample.
        """
        config = self.config
        if prompt_codes is not None:
            codes = torch.cat((prompt_codes, codes), dim=1)
        mu = self.encode(codes, None, streaming, finalize)
        cond = torch.zeros_like(mu)
        skip = 0
        if prompt_mel is not None:
            skip = prompt_mel.shape[2]
            cond[:, :, :skip] = prompt_mel.to(cond.dtype)
        rate = config.cfg_rate if cfg_rate is None else cfg_rate
        speaker = self.speaker(xvector, codes.shape[0])
        mel = self.decoder.sample(mu, speaker, cond, n_steps or config.steps, rate, streaming, schedule)
        return mel[:, :, skip:]

    def loss(
        self,
        codes: Tensor,
        mel: Tensor,
        lengths: Tensor,
        xvector: Tensor | None = None,
        *,
        prompt_rate: float = 0.5,
        streaming: bool = True,
    ) -> Tensor:
        """Flow-matching loss of a padded batch. Scalar, differentiable; no host synchronization.

        codes [B, N]; mel [B, n_mels, N * upsample]; lengths [B] in codes; xvector [B, xvector_dim]. A share
        `prompt_rate` of the rows is conditioned on up to the first 30 % of its target as prompt frames.
        """
        mu = self.encode(codes, lengths, streaming)
        frames = lengths * self.config.upsample
        index = torch.arange(mel.shape[2], device=mel.device)
        mask = (index < frames.unsqueeze(1)).unsqueeze(1).to(mel.dtype)  # [B, 1, T]
        rows = codes.shape[0]
        draw = torch.rand((2, rows), device=mel.device)
        prompt_frames = (draw[0] * 0.3 * frames).floor() * (draw[1] < prompt_rate)
        cond = mel * (index < prompt_frames.unsqueeze(1)).unsqueeze(1)
        return self.decoder.loss(mel, mask, mu, self.speaker(xvector, rows), cond, streaming)
