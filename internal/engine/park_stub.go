package engine

import (
	"time"

	"github.com/automutex/automutex/internal/turn"
)

type parking struct{}

func (*parking) wanted(Ref) (inbound, life int64)                          { return 0, 1000 }
func (*parking) noteParked(Ref, string, turn.Answer, bool)                 {}
func (*parking) noteReturn(Ref, string, turn.Answer) (time.Duration, bool) { return 0, false }
func (*parking) noteRelease(Ref, named, time.Time)                         {}
func (*parking) checkOrder(Ref)                                            {}
