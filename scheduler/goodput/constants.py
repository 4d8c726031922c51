"""The derivation of policy `goodput`, and its constants.

**What is maximised.** Expected committed tokens per second of all sessions, under the pace that each was promised.

**A session's rate.** A draft of k tokens is away for A(k) = delay + k * draft seconds after a verdict: the link and the
drafting. It then waits w for the start of a step, is in one step of t seconds, and commits E(k) tokens
(hw_profiles/speculation.py, with the session's own chances `first` and `later`):

    share = t / (A + w + t)          of the steps that the session is in; 1 if the server decodes it
    rate  = E(k) * share / t         tokens/s

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
best candidate replaces the present one when it is BETTER in DOUBTS reviews in a row.

**A step.** It starts at once, or waits for drafts that are about to come if that saves more session-seconds than it
costs. A pending draft is verified as far as the chance of a token is above CAUTION times the price of a position: the
seconds that one more position takes, times the tokens/s that the target commits meanwhile. Sessions whose hint is 0
are probed now and then, for what a device can do is known only while it drafts.

**Sources.** Without another note a value was chosen while the policy was developed against the simulated grid
(docs/benchmarks/grid.json) and the policies' contract tests (tests/policy_contract.py); the note says what it trades.
"""

LENGTHS = (0, 1, 2, 3, 4, 6, 8)  # draft lengths that are tried, tokens; each costs planning time
RESPONSE = -1  # the rule by which each session gets the best length for its device

# -- the model of a step ----------------------------------------------------------------------------------
ROUNDS = 6  # iterations of the fixed point; more change nothing that matters and cost planning time
BLUR = 0.4  # share of a step over which the whole number of missed steps is smoothed
PROMPTS_S = 5.0  # seconds over which rates of prompts are means: follows a burst, ignores a single prompt
TOKENS_STEP, CONTEXTS_STEP = (
    8,
    1000,
)  # positions over which marginal costs are measured: beyond a bend of the cost

# -- what an assignment is worth ----------------------------------------------------------------------------
BETTER = 0.03  # share of all tokens/s by which another assignment must be better: against flapping
DOUBTS = 3  # reviews in a row that must agree, for a change costs every device a pause
PROMISE = 5.0  # weight of tokens up to the promised pace, beside 1 for any token: a kept promise comes first
# Tokens for each step that passes meanwhile: a session that drafts and gets fewer is decoded instead.
MIN_GAIN = 0.5
# Relative standard deviations of tokens/s: of drafting sessions, more of it for each draft token, of decoded ones.
SPREAD, WIDER, STEADY = 0.17, 0.02, 0.02
LOGISTIC = 0.8  # of tanh: 0.5 + 0.5 * tanh(0.8 x) is the normal distribution's share below x, to 0.02

# -- when it is reviewed, and probes ------------------------------------------------------------------------
EVERY_S, EVERY_STEPS = 0.25, 8  # seconds between two reviews, or steps where those take longer
CHANGE = 0.1  # share of the sessions that are new or gone, from which on a review comes at once
PROBE_EVERY_S, PROBE_EVERY = 10.0, 50  # between two probes of a session: seconds, and times its draft is away
# Drafts of a probe and tokens of each: enough for a median, cheap enough to lose.
PROBE_DRAFTS, PROBE_LENGTH = 3, 4
GOLDEN = 0.618  # multiples of the golden ratio modulo 1 are spread evenly, and so are the first probes

# -- a step -------------------------------------------------------------------------------------------------
JITTERS = 4.0  # usual deviations that a draft may be late before its session is decoded
CAUTION = 1.3  # times its price that a draft token must be likely: a longer step also delays those who wait
PRICED = 8  # positions over which the price of one more is measured
PROMPTS = 0.25  # share of a full step that prompts may claim: first tokens against the pace of answers
BACKGROUND_S = 2.0  # seconds for which a background session lets others pass
CREDIT_S = 1.0  # seconds for which a session that is ahead of its pace lets others pass
