from asyncrollout.video.recorder import VideoRecorder as VideoRecorder
from asyncrollout.video.recording import Recording as Recording
from asyncrollout.video.writer import VideoWriter as VideoWriter
