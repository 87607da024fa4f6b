import torch, laptime, time, random, shutil, statistics as st, collections, gc
import torch.nn.functional as F
from laptime.train.networks import build
from laptime.measure.timeline import BACKWARD
import numpy as np
def bench(name,batch,n):
    m=build(name).cuda(); opt=torch.optim.SGD(m.parameters(),1e-3,momentum=.9)
    x=torch.randn(batch,3,224,224,device='cuda'); y=torch.zeros(batch,dtype=torch.long,device='cuda')
    def body(x,y):
        o=m(x); o=o if isinstance(o,torch.Tensor) else o[0]
        l=F.cross_entropy(o,y); l.backward(); opt.step(); opt.zero_grad()
    shutil.rmtree('/tmp/rr',ignore_errors=True)
    T=collections.defaultdict(list); rng=random.Random(0)
    V=['bare','full','noevent','noread','nonodes','nohooksbody','gcoff']
    with laptime.record(m,opt,out='/tmp/rr',every_step=False) as r:
        r._stop_background.set(); r._background.join()
        ins=r.instruments; clk=r._clock_in_use; state={'v':'bare'}
        r._budget.draw=lambda: state['v']!='bare'
        now=clk.now; dummy=torch.cuda.Event(enable_timing=True); dummy.record()
        r.timeline._now=lambda: dummy if state['v']=='noevent' else now()
        rs=r._read_stamps
        def read(**k):
            for raw in list(r._unread)[:-1]:
                if any(e is dummy for e in raw.stamps) or raw.fields.get('x'): pass
            while r._unread:
                raw=r._unread.popleft()
                if state['prev'] in ('noread','noevent','bare0'): clk.recycle([e for e in raw.stamps[:-1] if e is not dummy])
                else:
                    ok=[e for e in raw.stamps if e is not dummy]
                    if clk.ready(ok[-1]) or True:
                        torch._C._CudaEventBase.synchronize(ok[-1]) if False else None
                        try: clk.read(ok)
                        except Exception: pass
                    clk.recycle([e for e in raw.stamps[:-1] if e is not dummy])
        r._read_stamps=read; state['prev']='bare'
        mn=ins._mark_nodes
        ins._mark_nodes=lambda o: BACKWARD if state['v']=='nonodes' else mn(o)
        last=None
        for i,b in enumerate(r.steps([(x,y)]*n)):
            t=time.perf_counter()
            if last is not None and i>60: T[state['prev']].append(t-last)
            last=t; 
            body(*b)
            state['prev']=state['v']; state['v']=rng.choice(V[:5]) if i>20 else 'full'
            # the variant chosen now applies to the step opened by the coming lap
    base=np.median(T['bare'])
    print(name,batch,f"bare {base*1e3:.3f} ms", {k:(len(v),f"{(np.median(v)-base)*1e6:+.0f} us",f"{(np.median(v)/base-1)*100:+.1f}%") for k,v in T.items()},flush=True)
bench('alexnet',16,3000); bench('resnet50',32,700); bench('googlenet',64,700)
