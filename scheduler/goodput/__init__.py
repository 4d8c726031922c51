"""Policy `goodput`: it chooses the work of each step, and the drafter and draft length of each session.

**Objective.** Maximise the expected committed tokens per second of all sessions, under the guaranteed pace of each.

**Arms** (rounds.py). A session is decoded, or its device drafts k tokens, or the server does, or both. A hint is an
order: a device drafts as many tokens as the latest hint says, and 4 before the first one. After a verdict, a draft of k
tokens is away for A = delay + k * draft seconds, then waits w for a step of t seconds, which commits E(k) tokens
(hw_profiles/speculation.py, with the acceptance chances `first` and `later` of this session's drafts; tokens that
were left out as unlikely count with their confidences):

    share = t / (A + w + t)          of the steps that the session is in; 1 if the server decodes it
    rate  = E(k) * share / t         tokens/s

A verdict leaves when a step ends and the next one begins: a draft misses ceil(A / t) whole steps, and w = ceil(A / t) *
t - A as far as others keep the target busy. So one more token may cost a whole step, and exact lengths matter; ceil is
smoothed, because steps differ in length. A second draft of j tokens adds to the first one

    apart * sum over i <= j of reach(i) * (1 - the first one's reach(i))

with reach(i) = the chance that i tokens are accepted, and `apart` learned, because two drafters of one target often
agree.

**The step time** (assignment.py). A step runs if at least one session is in it, with the chance busy = 1 - product of
(1 - share). So a step computes share / busy * (k + 1) positions of each session and reads share / busy * context KV
positions: all of them for one user, the mean for many. The step time depends on the shares, and the shares on the step
time: t = cost(sum of all) is solved by iteration. Server drafts add one pass for each token of the longest one. Prompts
are left out, because drafts do not change their time: a second has the worth of the tokens that sessions write in a
second without prompts. Promised paces are compared with rates times the share of time that prompts left lately.

**The assignment.** The candidates are: for each arm, all sessions with this arm; and each session with the arm that is
best for it while the others stay (its response to the present assignment, and to the best uniform one):

    gain = rate + promise - slowdown * share * seconds that its place adds to a step

`slowdown` = sum of rate * share / t, the tokens/s that all lose if steps become a second longer. The value of a
candidate is the sum of its rates, plus PROMISE * pace of each session times the chance that it keeps its pace, minus a
margin: BETTER times the present rate of each session whose device would draft less or more than now, OWN_BETTER for
other changes. The policy takes the best candidate, the present assignment included. The margin keeps hints stable:
while estimates do not change, each change of the assignment increases its value, so changes end.

**Outcomes** (outcomes.py). The formulas do not know that one processor drafts for several sequences, or that the next
text is harder. So E(k) of device drafts is multiplied by a ratio of ratios: committed tokens / planned tokens of the
sessions with drafts, over the same of the others. The time that prompts add to steps does not count.

**A new session** gets its response at once. Its estimates start from those of its device, or else from the mean of its
tenant's devices, or from a guess (scheduler/estimates.py). Drafters that rest are probed, see probes.py.

**A step** (policy.py, step_budget.py) starts at once, or waits for drafts that are about to arrive if that saves more
session-seconds than it costs. It verifies those draft tokens whose chance is above the price of a position: the seconds
that a position adds, times the tokens/s of all sessions. Work that does not fit waits for its turn.

**Constants** were chosen against the simulated grid (docs/benchmarks/grid.json) and the policies' contract
(tests/policy_contract.py); the comment at each says what it trades, or the figure that set it.
"""
