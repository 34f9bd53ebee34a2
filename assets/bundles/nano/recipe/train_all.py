"""All stages of the recipe in the order of their needs, side by side where there are several GPUs.

    python train_all.py WORK OUT [--gpus 1] [--questions 19400] [--tests FILE] [--init FILE] [--neural 4]
        [--tokenizer 8] [--vocoder 20] [--flow 6] [--lm 12] [--refine 5] [--finish 7] [--start FILE]
    python train_all.py WORK OUT --bundle BUNDLE [--lm 7.5] [--neural 1.9] [--tests FILE] [--gpus N]

Minutes for each stage. With one GPU all but the tokenizer share it; with more, vocoder and flow have their
own. The neural voices are made while the tokenizer is trained, which takes them up when they are there.
`--tests` and `--init`: see synthesize.py and train_tokenizer.py. With `--bundle` only the language model is
trained, from that of the bundle, and the mean of both is taken; all else is taken over as it is.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
KEPT = ("speech_encoder.safetensors", "flow.safetensors", "vocoder.safetensors")
BEGIN = time.time()


class Stage:
    """One training script in a process of its own, its output in a log."""

    def __init__(self, name: str, arguments: list[str], out: Path, gpu: int) -> None:
        self.name, self.log, self.begin = name, out / f"{name}.txt", time.time()
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": str(gpu), "PYTHONUNBUFFERED": "1"}
        command = [sys.executable, *arguments]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(command, cwd=HERE, env=environment, stdout=log, stderr=log)
        _say(f"{name} starts on GPU {gpu}")

    def wait(self) -> None:
        """Until it ends; a failure ends everything."""
        code = self.process.wait()
        _say(f"{self.name} ends with {code} after {time.time() - self.begin:.0f} s")
        if code:
            raise SystemExit(f"{self.name} failed:\n" + self.log.read_text()[-3000:])


def _say(what: str) -> None:
    print(f"[{time.time() - BEGIN:5.0f} s] {what}", flush=True)


def main() -> None:
    """Run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("work", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--questions", default="19400", help="distinct training questions")
    parser.add_argument("--tests", type=Path, help="questions that are taken over into dev.npz")
    parser.add_argument("--init", type=Path, help="weights the speech encoder starts from")
    parser.add_argument("--gpus", type=int, default=1)
    for name, minutes in (
        ("neural", 4.0),
        ("tokenizer", 8.0),
        ("vocoder", 20.0),
        ("flow", 6.0),
        ("lm", 12.0),
        ("refine", 5.0),
        ("finish", 7.0),
    ):
        parser.add_argument(f"--{name}", type=float, default=minutes, metavar="MINUTES")
    parser.add_argument("--start", type=Path, help="weights of a larger vocoder whose layers are taken over")
    parser.add_argument("--bundle", type=Path, help="a bundle whose language model is trained on")
    parser.add_argument("--peak", default="8e-4", help="its learning rate then")
    parser.add_argument(
        "--blend", default="0.5", help="share of its trained weights then, rest of the bundle's"
    )
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    paths = [str(args.work.resolve()), str(args.out.resolve())]
    first, second = 0, 1 % args.gpus

    def stage(name: str, script: str, gpu: int, *more: str) -> Stage:
        minutes = str(getattr(args, name))
        return Stage(name, [script, *paths, "--minutes", minutes, *more], args.out, gpu)

    tests = ["--tests", str(args.tests.resolve())] if args.tests else []
    init = ["--init", str(args.init.resolve())] if args.init else []
    classic = ["synthesize.py", paths[0], "--questions", args.questions, *tests]
    synthesis = Stage("synthesize", classic, args.out, first)
    if not args.bundle:
        synthesis.wait()  # its processes have the cores for themselves
    more_voices = ["synthesize.py", paths[0], "--questions", args.questions]
    more_voices += ["--neural", str(args.neural), "--device", "cuda"]
    neural = Stage("neural", more_voices, args.out, second) if args.neural else None
    if args.bundle:
        synthesis.wait()
        if neural:
            neural.wait()
        for name in KEPT:
            shutil.copyfile(args.bundle / name, args.out / name)
        init = ["--init", str(args.bundle.resolve() / "lm.safetensors"), "--peak", args.peak]
        init += ["--blend", args.blend]
        stage("lm", "train_lm.py", first, *init).wait()
        return
    # On one GPU the vocoder waits: the others need the tokenizer, and it needs nobody.
    start = ("--start", str(args.start.resolve())) if args.start else ()
    vocoder = stage("vocoder", "train_vocoder.py", second, *start) if args.gpus > 1 else None
    stage("tokenizer", "train_tokenizer.py", first, *init).wait()
    if neural:
        neural.wait()
    vocoder = vocoder or stage("vocoder", "train_vocoder.py", second, *start)
    flow = stage("flow", "train_flow.py", second)
    lm = stage("lm", "train_lm.py", first)
    flow.wait()
    vocoder.wait()
    if args.refine:
        # The vocoder once more, on what the trained flow really makes.
        more = ("--flow", "--init", paths[1], "--peak", "1e-4")
        stage("refine", "train_vocoder.py", second, *more).wait()
    if args.finish:
        stage("finish", "finish_vocoder.py", second).wait()
    lm.wait()


if __name__ == "__main__":
    main()
