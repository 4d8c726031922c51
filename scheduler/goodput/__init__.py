"""Policy `goodput`: what a step computes, and which devices draft how much. This is its derivation.

**What is maximised.** Expected committed tokens per second of all sessions, under the pace that each was promised.

**A session's rate.** A draft of k tokens is away for A(k) = delay + k * draft seconds after a verdict: the link and the
drafting. It then waits w for the start of a step, is in one step of t seconds, and commits E(k) tokens
(hw_profiles/speculation.py, with the session's own chances `first` and `later`):

    share = t / (A + w + t)          of the steps that the session is in; 1 if the server decodes it
    rate  = E(k) * share / t         tokens/s

The times are medians, which know nothing of what comes now and then. A device that looks ahead has sometimes drafted
before the verdict came: A is shorter by the share that its drafts are `earlier` on the mean.

A verdict leaves when a step ends and the next one begins, so a draft misses all steps that begin while it is away: it
comes back after ceil(A / t) whole steps, and w = ceil(A / t) * t - A, as far as the target is busy. Steps are not all
equally long, so ceil is smoothed over BLUR of a step.

**The step time.** A step computes share * (k + 1) positions of each session and reads share * context KV positions, so
its seconds depend on the shares, and they on it: t = cost(sum of all that are in a step of t). ROUNDS iterations find
this fixed point. If a step cannot hold all, they take turns. Steps with a piece of a prompt are mixed in by frequency.

**The assignment.** Candidates: all sessions decode; all draft k, for each k of LENGTHS; and each takes what is best for
its device at the marginal costs of the best candidate so far (rule RESPONSE): its rate, less the tokens/s that all
others lose because its positions make steps longer:

    gain(k) = rate(k) + promise(k) - slowdown * share(k) * (token_s * (k + 1) + context_s * context + session_s)

`slowdown` = sum of rate * share / t: a step that is one second longer slows each session by the share of its round.
A candidate's worth is the sum of rates, plus PROMISE * pace for each session by the chance that it keeps its pace. The
best candidate replaces the present one when it is BETTER in DOUBTS reviews in a row; where only the server's own drafts
change, at once and for OWN_BETTER. Assignments with own drafts count DOUBT less than plain decoding: what they gain is
an estimate, and sessions that get no draft wait for longer steps all the same. While RESPONSE is the present one, each
review takes the next response, to the costs that the present lengths make, if it is worth more than these: hints that
followed every response would go back and forth, as all devices answer the same costs at once.

**The server's own drafts.** Arms: plain decoding, k tokens of the device, j of the server, or both. A second draft adds

    apart * sum over i of reach(i) * (1 - reach'(i))

with `reach` of it and `reach'` of the first one; `apart` is learned, for two models of one target agree more often than
chance. What drafting costs is added to t: a pass for each token of the longest draft, which all who draft share; who
wants more passes than a second session pays for them alone.

**A step.** It starts at once, or waits for drafts that are about to come if that saves more session-seconds than it
costs. A pending draft is verified as far as the chance of a token is above the price of a position: the seconds that
one more position takes, times the tokens/s that the target commits meanwhile, and times CAUTION where sessions wait for
their devices. Sessions whose hint is 0 are probed now and then, for what a device can do is known only while it drafts.

**Sources.** Without another note a value was chosen while the policy was developed against the simulated grid
(docs/benchmarks/grid.json) and the policies' contract tests (tests/policy_contract.py); the note says what it trades.
"""
