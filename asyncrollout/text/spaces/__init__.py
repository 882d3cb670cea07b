"""Any Gymnasium env as a text env, by its spaces."""

from asyncrollout.text.spaces.text import SpaceText as SpaceText
