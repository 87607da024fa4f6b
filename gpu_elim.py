import torch, laptime, time, sys, gc, shutil, statistics as st, collections
import torch.nn.functional as F
from laptime.train.networks import build
m=build('alexnet').cuda(); opt=torch.optim.SGD(m.parameters(),1e-3,momentum=.9)
x=torch.randn(16,3,224,224,device='cuda'); y=torch.zeros(16,dtype=torch.long,device='cuda')
def body(x,y):
    l=F.cross_entropy(m(x),y); l.backward(); opt.step(); opt.zero_grad()
for _ in range(20): body(x,y)
N=100
print('perf_counter_ns us', [ (lambda t0: (time.perf_counter_ns()-t0)/1e3)(time.perf_counter_ns()) for _ in range(5)])
T=collections.defaultdict(list)
def timed(obj,name,label=None):
    f=getattr(obj,name); label=label or name
    def w(*a,**k):
        t=time.perf_counter(); r=f(*a,**k); T[label].append((time.perf_counter()-t)*1e6); return r
    setattr(obj,name,w)
def rec(every, what):
    shutil.rmtree('/tmp/rr',ignore_errors=True); T.clear()
    with laptime.record(m,opt,out='/tmp/rr',every_step=every,**({} if every else {'budget':1e-6})) as r:
        for o,n in what(r): timed(o,n,type(o).__name__+'.'+n)
        for i,b in enumerate(r.steps([(x,y)]*(N+12))):
            if i==11: torch.cuda.synchronize(); t=time.perf_counter(); T.clear()
            body(*b)
            if i==N+10: torch.cuda.synchronize(); out=(time.perf_counter()-t)/N
    print('every' if every else 'budget', f"{out*1e3:.3f} ms/step", {k:(round(st.median(v),1),round(sum(v)/N,1),len(v)/N) for k,v in T.items()}, flush=True)
class S: pass
def wrap_stamps(r): pass
for every in (False,True):
    rec(every, lambda r: [])
    rec(every, lambda r: [(r,'lap')])
    rec(every, lambda r: [(r,'_close'),(r,'_prepare'),(r._clock_in_use,'follow'),(r.instruments,'next_step')])
    rec(every, lambda r: [(r,'_read_stamps'),(r._clock_in_use,'ready'),(r._clock_in_use,'seconds'),(r._clock_in_use,'recycle')])
    rec(every, lambda r: [(r,'watch_loss'),(r,'watch_backward'),(r.instruments,'root_exit'),(r.instruments,'root_enter')])
# bare pieces
def pieces(n=100, hook=False):
    A=collections.defaultdict(list)
    for _ in range(n):
        t0=time.perf_counter(); o=m(x); t1=time.perf_counter(); l=F.cross_entropy(o,y); t2=time.perf_counter(); l.backward(); t3=time.perf_counter(); opt.step(); t4=time.perf_counter(); opt.zero_grad(); t5=time.perf_counter()
        for k,v in zip(('fwd','loss','bwd','opt','zero'),(t1-t0,t2-t1,t3-t2,t4-t3,t5-t4)): A[k].append(v*1e6)
    torch.cuda.synchronize()
    return {k:round(st.median(v)) for k,v in A.items()}
print('bare',pieces()); print('bare',pieces())
for every in (False,True):
    shutil.rmtree('/tmp/rr',ignore_errors=True)
    with laptime.record(m,opt,out='/tmp/rr',every_step=every,**({} if every else {'budget':1e-6})) as r:
        A=collections.defaultdict(list)
        for b in r.steps([(x,y)]*110):
            t0=time.perf_counter(); o=m(x); t1=time.perf_counter(); l=F.cross_entropy(o,y); t2=time.perf_counter(); l.backward(); t3=time.perf_counter(); opt.step(); t4=time.perf_counter(); opt.zero_grad(); t5=time.perf_counter()
            for k,v in zip(('fwd','loss','bwd','opt','zero'),(t1-t0,t2-t1,t3-t2,t4-t3,t5-t4)): A[k].append(v*1e6)
    print('rec',every,{k:round(st.median(v)) for k,v in A.items()})
print('bare',pieces())
# event record in situ
ev=[torch.cuda.Event(enable_timing=True) for _ in range(8)]; s=torch.cuda.current_stream(); R=torch._C._CudaEventBase.record
A=collections.defaultdict(list)
for _ in range(100):
    t0=time.perf_counter(); R(ev[0],s); t1=time.perf_counter(); o=m(x); t2=time.perf_counter(); R(ev[1],s); t3=time.perf_counter(); l=F.cross_entropy(o,y); R(ev[2],s); t4=time.perf_counter(); l.backward(); t5=time.perf_counter(); R(ev[3],s); t6=time.perf_counter(); opt.step();  t7=time.perf_counter(); R(ev[4],s);t8=time.perf_counter(); opt.zero_grad(); q=ev[0].query(); t9=time.perf_counter()
    for k,v in zip(('rec0','fwd','rec1','loss','bwd','rec3','opt','rec4','zero'),(t1-t0,t2-t1,t3-t2,t4-t3,t5-t4,t6-t5,t7-t6,t8-t7,t9-t8)): A[k].append(v*1e6)
print('bare+events',{k:round(st.median(v),1) for k,v in A.items()})
