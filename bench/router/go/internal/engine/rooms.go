package engine

import "sync"

// rooms are the bootstrap rooms that both sides were asked to meet in. A room is for one request: one that
// the same side sees twice would let two requests write into each other's pages.
type rooms struct {
	lock  sync.Mutex
	seen  map[uint64]*room
	twice int
	none  int
}

type room struct {
	sides  uint8
	filled chan struct{} // closed when prefill has computed the prompt
	once   sync.Once
}

func (r *room) fill() { r.once.Do(func() { close(r.filled) }) }

const keptRooms = 200_000

func (r *rooms) enter(number uint64, side Side) *room {
	r.lock.Lock()
	defer r.lock.Unlock()
	if number == 0 {
		r.none++
		return nil
	}
	if len(r.seen) >= keptRooms {
		r.seen = nil // forgets the oldest with the newest; a long soak must not grow
	}
	if r.seen == nil {
		r.seen = map[uint64]*room{}
	}
	found := r.seen[number]
	if found == nil {
		found = &room{filled: make(chan struct{})}
		r.seen[number] = found
	}
	if found.sides&side.bit() != 0 {
		r.twice++
	}
	found.sides |= side.bit()
	return found
}

// RoomCounts says how requests were paired. Lonely: only one side ever came.
type RoomCounts struct {
	Paired int `json:"paired"`
	Lonely int `json:"lonely"`
	Twice  int `json:"twice"`
	None   int `json:"none"`
}

func (r *rooms) counts() RoomCounts {
	r.lock.Lock()
	defer r.lock.Unlock()
	counts := RoomCounts{Twice: r.twice, None: r.none}
	for _, each := range r.seen {
		if each.sides == Prefill.bit()|Decode.bit() {
			counts.Paired++
		} else {
			counts.Lonely++
		}
	}
	return counts
}

func (r *rooms) reset() {
	r.lock.Lock()
	defer r.lock.Unlock()
	r.seen, r.twice, r.none = nil, 0, 0
}
