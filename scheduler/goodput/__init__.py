"""Policy `goodput`: what a step computes, who drafts how much, and what is remembered between steps."""
