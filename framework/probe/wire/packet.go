package wire

import (
	"encoding/binary"
	"errors"
)

// PacketSize is the payload of every probe packet, in bytes.
const PacketSize = 32

const maxServer = 1<<24 - 1

// magic opens every packet: whatever else arrives at the port is not ours.
const magic = 0x726c7031 // "rlp1"

// Kind tells a request from its reply. A responder answers requests only, so
// two responders can never answer each other for ever.
type Kind uint8

// Kinds of a packet.
const (
	RequestPacket Kind = 1
	ReplyPacket   Kind = 2
)

// Packet is what a probe sends and what the far end sends back, the same but for its kind.
type Packet struct {
	Kind Kind
	// Set is the random number of the set of probes that the packet belongs
	// to. Packets that are left of an earlier run have another one.
	Set   uint64
	Probe uint32
	// Slot is the sequence number.
	Slot uint32
	// Server is, in a reply, the low 24 bits of the number of the agent that sent it (Request.Server); 0 if
	// the agent is not in the set.
	Server uint32
	// Sent is when the request left, by the sender's own clock; it comes back
	// unchanged, so that the sender needs no table to know the RTT.
	Sent int64
}

// Put writes p into b, which has room for PacketSize bytes.
func (p Packet) Put(b []byte) {
	_ = b[PacketSize-1]
	binary.BigEndian.PutUint32(b, magic)
	binary.BigEndian.PutUint32(b[4:], uint32(p.Kind)<<24|p.Server&maxServer)
	binary.BigEndian.PutUint64(b[8:], p.Set)
	binary.BigEndian.PutUint32(b[16:], p.Probe)
	binary.BigEndian.PutUint32(b[20:], p.Slot)
	binary.BigEndian.PutUint64(b[24:], uint64(p.Sent))
}

var errNotOurs = errors.New("not a probe packet")

// ParsePacket reads a packet. Longer payloads are refused as well as shorter
// ones: they are somebody else's.
func ParsePacket(b []byte) (Packet, error) {
	if len(b) != PacketSize || binary.BigEndian.Uint32(b) != magic {
		return Packet{}, errNotOurs
	}
	p := Packet{
		Kind:   Kind(b[4]),
		Server: binary.BigEndian.Uint32(b[4:]) & maxServer,
		Set:    binary.BigEndian.Uint64(b[8:]),
		Probe:  binary.BigEndian.Uint32(b[16:]),
		Slot:   binary.BigEndian.Uint32(b[20:]),
		Sent:   int64(binary.BigEndian.Uint64(b[24:])),
	}
	if p.Kind != RequestPacket && p.Kind != ReplyPacket {
		return Packet{}, errNotOurs
	}
	return p, nil
}
