"""All stages of the recipe in the order of their needs, side by side where there are several GPUs.

    python train_all.py WORK OUT [--scale 1.0] [--tokenizer 8] [--vocoder 20] [--flow 6] [--lm 12] [--refine 5]

Minutes for each stage. With one GPU all but the tokenizer share it; with more, the vocoder has its own.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
BEGIN = time.time()


class Stage:
    """One training script in a process of its own, its output in a log."""

    def __init__(self, name: str, arguments: list[str], out: Path, gpu: int) -> None:
        self.name, self.log = name, out / f"{name}.txt"
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": str(gpu), "PYTHONUNBUFFERED": "1"}
        self.begin = time.time()
        with self.log.open("w") as log:
            self.process = subprocess.Popen([sys.executable, *arguments], cwd=HERE, env=environment, stdout=log, stderr=log)
        print(f"[{time.time() - BEGIN:5.0f} s] {name} starts on GPU {gpu}", flush=True)

    def wait(self) -> None:
        """Until it ends; a failure ends everything."""
        code = self.process.wait()
        print(f"[{time.time() - BEGIN:5.0f} s] {self.name} ends with {code} after {time.time() - self.begin:.0f} s", flush=True)
        if code:
            raise SystemExit(f"{self.name} failed:\n" + self.log.read_text()[-3000:])


def main() -> None:
    """Run."""
    parser = argparse.ArgumentParser()
    parser.add_argument("work", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--scale", default="1.0")
    parser.add_argument("--gpus", type=int, default=1)
    for stage, minutes in (("tokenizer", 8.0), ("vocoder", 20.0), ("flow", 6.0), ("lm", 12.0), ("refine", 5.0)):
        parser.add_argument(f"--{stage}", type=float, default=minutes)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    gpu = {name: index % args.gpus for index, name in enumerate(("tokenizer", "vocoder"))}
    gpu["flow"] = gpu["vocoder"]
    paths = [str(args.work.resolve()), str(args.out.resolve())]

    def stage(name: str, script: str, minutes: float, device: int, *more: str) -> Stage:
        return Stage(name, [script, *paths, "--minutes", str(minutes), *more], args.out, device)

    synthesis = Stage("synthesize", ["synthesize.py", paths[0], "--scale", args.scale], args.out, 0)
    synthesis.wait()
    # On one GPU the vocoder waits: the others need the tokenizer, and it needs nobody.
    vocoder = stage("vocoder", "train_vocoder.py", args.vocoder, gpu["vocoder"]) if args.gpus > 1 else None
    stage("tokenizer", "train_tokenizer.py", args.tokenizer, gpu["tokenizer"]).wait()
    vocoder = vocoder or stage("vocoder", "train_vocoder.py", args.vocoder, gpu["vocoder"])
    flow = stage("flow", "train_flow.py", args.flow, gpu["flow"])
    lm = stage("lm", "train_lm.py", args.lm, gpu["tokenizer"])
    flow.wait()
    vocoder.wait()
    if args.refine:
        stage("refine", "train_vocoder.py", args.refine, gpu["vocoder"], "--flow", "--init", paths[1], "--peak", "1e-4").wait()
    lm.wait()


if __name__ == "__main__":
    main()
