"""What orchestration adds to a trial: this project, Ray Tune by itself, and plain torch.

All sides train the same toy trial: digits/mlp, batch size 32, sgd, 200 steps, no goal, evaluated at
step 0 and at the end only.

    torch        a hand-written loop in this process, nothing else
    ours 1       `run_trials` with one rank: searcher, warm gangs, Parquet files; all CPUs
    ours 1 alone the same with all CPUs but one held back, so one trial at a time
    ours 2       `run_trials` with two gloo ranks for each trial
    tune         a Tune function trainable, as in its tutorial
    tune+train   a Tune function that runs Train's TorchTrainer with two ranks, as documented

Ray is started once, before anything is timed. The two Tune sides get their data ready-made and
train with the hand-written loop, which is in their favour.

slots        trials that run at once
wall         seconds from one trial's start to the next one's, over warm trials (the second half of
             each side's trials; for torch, and where there are but two, all), their mean
training     seconds of optimizer steps in a trial (median over the same trials); data, model,
             evaluation are not in it
overhead     wall x slots - training, in ms: all of a slot's time that isn't spent in steps
trials/hour  3600 / wall

Bounds: the overhead of `ours 1` and of `ours 1 alone` is at most 30 ms per trial; `ours 2` runs at
least 40 times the trials per hour of `tune+train`.
"""
