from asyncrollout.dropin.rlinf.interfaces import EvaluationResult as EvaluationResult
from asyncrollout.dropin.rlinf.interfaces import HybridComponentPlacement as HybridComponentPlacement
from asyncrollout.dropin.rlinf.interfaces import create_video_writer as create_video_writer
from asyncrollout.dropin.rlinf.interfaces import create_video_writers as create_video_writers
from asyncrollout.dropin.rlinf.interfaces import evaluate as evaluate
from asyncrollout.dropin.rlinf.interfaces import write_video as write_video
