package automutex
