"""The task preference: a language model learns from people's choices between answers (DPO, IPO, KTO, ORPO)."""
