"""Any env as a text env, by its spaces."""

from asyncrollout.spaces.text import SpaceText as SpaceText
