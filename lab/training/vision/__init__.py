"""`tiny-vision`: a small vision-language target that is trained here, on pictures that are drawn here.

It is made as larger ones are: a CLIP tower first learns to see (`learner`), the decoder starts as a model that writes
text, here `tiny-hub` (`start`), and both learn together from questions about pictures (`scenes`, `rows`, `learner`).
"""
