from asyncrollout.video.recorder import VideoRecorder as VideoRecorder
from asyncrollout.video.recording import VideoRecording as VideoRecording
from asyncrollout.video.writer import VideoWriter as VideoWriter
